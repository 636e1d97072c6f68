import { Card } from '../components/Card';
import { FeaturesDrawing } from '../drawings/FeaturesDrawing';
import '../styles/drawings.css';

/** What the router does, in pictures. */
export default function Features() {
  return (
    <Card title="Features">
      <FeaturesDrawing />
    </Card>
  );
}
